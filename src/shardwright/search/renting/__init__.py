"""What a plan on rented machines is expected to come to, interruptions counted.

* `choice`: rented machines with a plan, hours, dollars and preemptions
* `expected`: what machines cost, and a costed plan as a choice
"""
