"""The transformer that a `Model` describes, built unit by unit, so that a rank has the units of its stages alone."""
