package inventory

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/orlop-os/orlop/pkg/trust"
)

// Interval is the period at which a waiting machine repeats its message.
const Interval = 30 * time.Second

const (
	// expireAfter is how long a machine stays listed after its last message.
	expireAfter = 3 * time.Minute
	// maxEntries is the maximum number of listed machines, and maxPerAddress the maximum for one
	// source address. The limits exist because every machine in the network can send messages.
	maxEntries, maxPerAddress = 64, 4
)

// Entry is a machine that waits for a configuration. Its JSON form is stored nowhere.
type Entry struct {
	Key     string     `json:"key"`     // fingerprint of its key (pki.KeyFingerprint)
	Address netip.Addr `json:"address"` // source of its last message
	Since   time.Time  `json:"since"`   // time of its first message
	Last    time.Time  `json:"last"`
	Host
}

// Listing is the message of a control-plane machine to its controllers.
type Listing struct {
	Waiting []Entry `json:"waiting"`
	// Members are the key fingerprints of the members of the cluster, which do not wait any more.
	// Nil means unknown: the control-plane machine accepts no inventories.
	Members []string `json:"members"`
	// Names are the names of the members, and of the machines that have a ticket to join.
	Names []string `json:"names"`
	// Approvals are the approvals by rules with which machined has admitted machines. Operators are
	// the operators' CAs in PEM. With these CAs, the controllers find out which rules machined
	// accepts.
	Approvals []trust.Approval `json:"approvals,omitempty"`
	Operators []byte           `json:"operators,omitempty"`
}

// List maps fingerprints to the machines. It is immutable: Record returns a changed copy.
type List map[string]Entry

// Record returns the list with the machine that sent the message e, and the answer to e. The times
// in e are ignored.
func (l List) Record(e Entry, now time.Time) (List, Answer) {
	l = l.current(now)
	e.Since, e.Last = now, now
	if old, known := l[e.Key]; known {
		e.Since = old.Since
	} else {
		same := 0
		for _, o := range l {
			if o.Address == e.Address {
				same++
			}
		}
		switch {
		case len(l) >= maxEntries:
			return l, Answer{Reason: fmt.Sprintf("too many machines are listed (%d); try again later", len(l))}
		case same >= maxPerAddress:
			return l, Answer{Reason: fmt.Sprintf("too many machines are listed (%d) with the address %s; try again later", same, e.Address)}
		}
	}
	l[e.Key] = e
	return l, Answer{Listed: true}
}

// Without returns a copy of the list that lacks the entries for whose keys the function `has`
// returns true.
func (l List) Without(has func(key string) bool) List {
	l = maps.Clone(l)
	maps.DeleteFunc(l, func(key string, _ Entry) bool { return has(key) })
	return l
}

// Current returns the listed machines, in the order of their first messages.
func (l List) Current(now time.Time) []Entry {
	return slices.SortedFunc(maps.Values(l.current(now)), func(a, b Entry) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Key, b.Key))
	})
}

// current returns a copy without expired entries.
func (l List) current(now time.Time) List {
	out := List{}
	for key, e := range l {
		if now.Sub(e.Last) < expireAfter {
			out[key] = e
		}
	}
	return out
}
