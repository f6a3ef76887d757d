"""When should LLM inference run on consumer GPUs, on enterprise GPUs, or on both?"""

__version__ = "0.1.0"
