"""Looking for damage in a queue and mending it: facts, judgements, repairs. Source: reliability §3.3"""
