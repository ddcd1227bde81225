"""Forms in which a person reads plans: one file a form. Nothing here computes a plan or a prediction; it only shows
what `plan` holds."""
