"""From text that a user wrote to plain data, with every fault named by its place.

* `reading`: text, JSON and YAML
* `fields`: checked access to the fields of a mapping
"""
