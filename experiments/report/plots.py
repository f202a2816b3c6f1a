"""Pictures of columns, of :mod:`experiments.report.study_figures`."""

from experiments.report.study_figures import column_plots as column_plots
