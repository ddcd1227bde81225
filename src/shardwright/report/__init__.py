"""Forms in which a person reads plans: one file a form. Nothing here computes a plan or a prediction; it only shows
what `plan` holds.

Words and layout of text are shared: `describe` (a plan in words), `explain` (how two plans differ), `layout` (tables,
bars, wrapped lines), `plans` (plans as a table and in full). The forms: `terminal` (a search), `evaluation` (a user's
plan), `catalogue` (GPUs, models, prices), `validation` and `accuracy_page` with its picture `scatter` (measured runs),
`documents` and `validation_document` (JSON)."""
