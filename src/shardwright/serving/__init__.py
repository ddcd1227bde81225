"""The library for other programs and for assistants. Requests are plain values, and reach no file of the machine.

* `requests`: what the page may ask, and how much of it
* `answers`: figures and errors as plain data
* `tools`: commands as tools, with their schemas; the OpenAPI document of `serve`
* `worker`: answers from processes that can be stopped
* `warm`: what such a process has loaded
* `assistant`: a Model Context Protocol server
* `what_if/`: a page in the browser
"""
