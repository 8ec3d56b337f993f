"""Carries requests out: watches with kopf, decides with lifecycle.step, writes with lightkube.  Needs kofn[jobs].

    handlers.py     what kopf watches: indices of what there is, a daemon for each request, the webhook
    observe.py      indices -> what is seen of a request
    carry_out.py    actions -> API calls
    expectations.py what was done and is not seen yet
    permissions.py  may this person train?
    lease.py        one operator at a time

All that it knows is in the cluster: it may die at any moment, and goes on where it was.
"""
