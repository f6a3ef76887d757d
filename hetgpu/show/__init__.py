"""Tables, pictures and the report: formats, computes nothing."""
