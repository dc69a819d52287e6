"""The model store: a child process of the balancer that keeps models for the fleet.

Its bytes never pass the balancer's event loop: the management listener parses and authorises a
request, then passes the connection on (``store_messages``). ``store_routes`` is the table of what
is answered, ``store_layout`` where everything lies.
"""
