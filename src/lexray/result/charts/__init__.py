"""Charts of our own, as SVG in the pages' theme: bars, grids, threads, points, panels with axes.

A chart is data. It draws itself with a `Pen` at any width, for a page (whose colours follow the
reader's theme) or for a file (light or dark); plotly is one more form, for those who have it.
"""
