"""What a plan on rented machines is expected to come to, interruptions counted.

* `choice`: rented machines with a plan, hours, dollars and preemptions
* `expected`: a costed plan as a choice
* `tariff`: what a second of an iteration comes to on some number of machines
"""
