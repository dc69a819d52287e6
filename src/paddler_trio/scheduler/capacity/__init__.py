"""Would a fleet keep its times at other loads, with other slots, or with more agents?"""
