"""A page in the browser on which a question is changed by hand, and the plan follows.

* `steps`: what the page is told about a request, one step after the other
* `downloads`: files to take along
* `page`: the page itself, with the styles and script of `assets/`
* `server`: HTTP on this machine

The page has all state, in its address; the server has none. A request carries all that it needs, as in `requests`.
"""
