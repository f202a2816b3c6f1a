"""Problems whose reasons are known, to test attention, explainers and exact posteriors on."""
