"""The only room that knows SQL and what Nsight Systems calls its tables: reports in, canonical Arrow tables out."""

from __future__ import annotations
