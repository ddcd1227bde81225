"""A user's own runs in place of the average site: what their machines, network and settings do that no column says.

* `setting`: what of a plan decides how much of a deviation it shares with another
* `calibration`: what was measured of a site, and what it says of a plan
* `file`: its file
* `calibrated`: any efficiency model, with a calibration on top
"""
