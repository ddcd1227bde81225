"""From text that a user wrote to plain data, with every fault named by its place.

* `reading`: text, JSON and YAML, and the line that a field stands on
* `fields`: checked access to the fields of a mapping
"""
