"""The table of aligners: all inference schemes in both directions and classic aligners, scored on gold links."""
