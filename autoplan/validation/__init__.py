"""Published training runs: what they report, and what the cost models say of them.

A row of a table (``published``) becomes a run as it was set up (``setups``), cut into what each
rank holds (``ranks``); its step is priced in seconds (``step``) and bytes (``memory``). ``predict``
puts both beside what is reported, ``scores`` tells how good that is.
"""
