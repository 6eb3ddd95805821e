
from kgray import kinds
from kgray.kinds import ALL
from kgray.words import packed


class Interim:
    def __init__(self, store): self.store=store; self.heads0=store.heads
    def __getattr__(self, n): return getattr(self.store, n)
    def heads(self, groups):
        import types
        out={}
        for g,h in self.store.heads(groups).items():
            out[g]=types.SimpleNamespace(named=h.named,last=h.last,last_recorded=h.last_recorded,removals=0)
        return out
    def rows(self, read, group, values=()):
        n=read.name
        ep=lambda r:(r[0],r[1],r[2],r[7],r[5],r[10],packed(f"{r[7]} {r[4]}" if r[7] else r[4]))
        ev=lambda r:(r[0],r[1],r[2],packed(f"{r[6]} {r[5].replace('_',' ')}"))
        nm=lambda r:(r[3],r[4],r[0],r[1],packed(r[1]))
        if n=="ew": return map(ep,self.store.rows(ALL["episodes"],group))
        if n=="ewa": return map(ep,self.store.rows(kinds.EPISODES_AT,group,values))
        if n=="vw": return map(ev,self.store.rows(ALL["evidence"],group))
        if n=="vwi": return map(ev,self.store.rows(kinds.EVIDENCE_IN,group,values))
        if n=="nw": return map(nm,self.store.rows(ALL["names"],group))
        if n=="nwo": return map(nm,self.store.rows(kinds.NAME_WORDS_OF,group,values))
        if n=="nvo": return ((r[0],r[1],r[-1]) for r in self.store.rows(kinds.NAME_VECTORS_OF,group,values))
        return self.store.rows(read,group,values)
