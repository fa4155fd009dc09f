"""From a history to a snapshot, and from a snapshot and commands to events. Pure: no I/O, no clock.

``projection`` folds events, ``decision`` plans what commands become, ``outcomes`` what the result
of a step becomes, ``repair`` what is due or was left unfinished. ``runtime`` and ``context`` are
what workflow code sees.
"""
