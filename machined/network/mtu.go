package network

import "slices"

// formerMTUs are the MTUs that links had before their first change here, by index. A link gets its
// own back when neither its configuration nor its lease names one any more, as after a trial.
type formerMTUs map[int]int

// note is told what the kernel has and what is about to be done. What went back, or could not be
// changed, is forgotten: somebody else may set it from then on.
func (f formerMTUs) note(links []Link, ops []Op) {
	for index, mtu := range f {
		if !slices.ContainsFunc(links, func(l Link) bool { return l.Index == index && l.MTU != mtu }) {
			delete(f, index)
		}
	}
	for _, o := range ops {
		if _, known := f[o.Index]; known || o.MTU == 0 {
			continue
		}
		if i := slices.IndexFunc(links, func(l Link) bool { return l.Index == o.Index }); i >= 0 {
			f[o.Index] = links[i].MTU
		}
	}
}
