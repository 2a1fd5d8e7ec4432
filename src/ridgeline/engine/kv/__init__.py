"""The management of KV memory for the engine.

`pool.py` counts pages, `prefix.py` names their contents, `kv_cache_manager.py` owns every request's page tables,
`store.py` owns the tensors, and `page_count.py` computes the number of pages. Only the store knows torch.
"""
