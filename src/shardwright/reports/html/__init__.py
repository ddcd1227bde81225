"""Results as one HTML page that needs nothing else and works without a network.

* `report`: the library call, from any result to a page
* `render`: a page as HTML, with the styles and scripts of `assets/`
* `page_of`: pages of a plan and of two side by side
* `plan_sections`: settings, time, memory, trust and money of a plan
* `cluster_map`: which stage each GPU works for
* `timeline`: the pipeline in time
* `front`: time against dollars or GPUs, on fewer of the machines
* `ranking`: the page of a search
* `shop`: the page of a search over offers
* `run`: the page of a training run
* `diagnosis`: the page of a diagnosis
"""
