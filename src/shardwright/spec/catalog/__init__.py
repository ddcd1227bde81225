"""Facts: GPUs, links, machine types, prices and models. Every row of `data/` has a source and a date.

* `gpus`: GPUs, by any name
* `machines`: links and machine types
* `prices`: prices of machines, those that a user wrote down, and the table in force
* `frameworks`: all that is known of each training framework
* `price_rule`: what a machine costs where nobody says
* `live_prices`: today's prices from public catalogues (gpuhunt)
"""
