"""Carries requests out: watches with kopf, decides with lifecycle.step, writes with lightkube. Needs kofn[jobs].

    handlers.py     kopf's handlers: indices of objects, a daemon for each request, the webhook
    observe.py      indices -> observed state of a request
    carry_out.py    actions -> API calls
    expectations.py actions whose effect is not visible yet
    permissions.py  may this person train?
    lease.py        one operator at a time

All state of the operator is in the cluster: the operator may die at any moment, and continues after a restart.
"""
