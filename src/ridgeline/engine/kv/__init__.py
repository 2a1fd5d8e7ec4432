"""KV memory: `pool.py` counts pages, `prefix.py` names their contents, `ledger.py` owns every request's page tables,
`store.py` owns the tensors, `memory.py` decides how many pages there are. Only the store knows torch.
"""
