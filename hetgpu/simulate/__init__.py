"""A calibrated simulator of vLLM serving: its step times, its scheduler, its fit and its error."""
