"""Plans for Megatron-Bridge 0.6.

* `recipe`: a plan as a recipe
* `provider`: the model as the fields of a provider
"""
