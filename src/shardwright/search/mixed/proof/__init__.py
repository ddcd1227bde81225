"""What no plan beats: bounds of compositions, the program over them, and how regions are split."""
