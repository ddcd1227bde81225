"""What is searched: settings, compositions, and the columns of figures that the search works on."""
