"""The library for other programs and for assistants. Requests are plain values, and nothing of them reaches the file
system.

* `requests`: what may be asked, and how much of it
* `answers`: short answers as plain data
* `worker`: answers from processes that can be stopped
* `warm`: what such a process has loaded
* `assistant`: a Model Context Protocol server
* `what_if/`: a page in the browser
"""
