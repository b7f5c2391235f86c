package network

import "slices"

// formerMTUs has the MTUs of links before their first change by this package, by index of the link.
// A link gets this original MTU back when neither its configuration nor its lease sets an MTU any
// more, for example after a trial.
type formerMTUs map[int]int

// record adds the MTUs of links that ops change for the first time. Before that, it deletes the
// entries of links that are gone or that have their original MTU. From then on another process may
// set their MTU.
func (f formerMTUs) record(links []Link, ops []Op) {
	for index, mtu := range f {
		if !slices.ContainsFunc(links, func(l Link) bool { return l.Index == index && l.MTU != mtu }) {
			delete(f, index)
		}
	}
	for _, o := range ops {
		for _, l := range links {
			// A bond sets the MTU of its members.
			joins := o.Verb == SetMaster && o.Change.Kind == kindBond && l.Index == o.Index
			set := o.MTU != 0 && (l.Index == o.Index || l.Master != "" && l.Master == o.Link)
			if _, known := f[l.Index]; !known && (joins || set) {
				f[l.Index] = l.MTU
			}
		}
	}
}
