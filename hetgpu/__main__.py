"""``python -m hetgpu`` is ``hetgpu``."""

from hetgpu.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
