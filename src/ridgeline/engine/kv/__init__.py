"""KV memory: `pool.py` counts pages, `prefix.py` names their contents, `kv_cache_manager.py` owns every request's page
tables, `store.py` owns the tensors, `page_count.py` decides how many pages there are. Only the store knows torch.
"""
