package timesync

import (
	"errors"
	"time"

	"github.com/orlop-os/orlop/machined/timesync/nts"
	"github.com/orlop-os/orlop/pkg/backoff"
)

// maxLost is the number of requests in a row without an authenticated answer after which the client
// replaces its keys. The reason can be a new address of the server, or a server that drops requests
// with old cookies.
const maxLost = 3

// exchanges is the delay between key exchanges while no answer is authenticated. A key exchange
// costs the server more than a time request.
var exchanges = backoff.Backoff{Min: 4 * time.Second, Max: 1024 * time.Second}

// association is the state of the client for one server with NTS. It is pure.
type association struct {
	session *nts.Session // if nil, the next request needs a key exchange first
	lost    int          // number of requests in a row without an authenticated answer
	tries   int          // number of key exchanges since the last authenticated answer
	next    time.Time    // earliest time of the next key exchange
	problem error        // why there is no session
}

// wait returns nil if a key exchange may take place at now. Else it returns the last problem
// unchanged, so the reported problem stays the same.
func (a *association) wait(now time.Time) error {
	if now.Before(a.next) {
		return a.problem
	}
	return nil
}

// exchanged records the result of a key exchange that ended at now.
func (a *association) exchanged(s *nts.Session, err error, now time.Time) {
	a.tries++
	a.session, a.problem, a.lost = s, err, 0
	a.next = now.Add(exchanges.Delay(a.tries))
}

// answered records the result err of a request. authenticated is true if the answer was
// authenticated with the key of the server. cookies is the number of cookies that are left.
// answered drops the keys if the server no longer answers or no longer has the keys, if no cookie
// is left, or if the authenticated time is wrong.
func (a *association) answered(authenticated bool, cookies int, err error) {
	if authenticated && !errors.Is(err, errWrongTime) {
		a.lost, a.tries = 0, 0
		return
	}
	a.lost++
	if authenticated || errors.Is(err, nts.ErrNAK) || a.lost >= maxLost || cookies == 0 {
		a.session, a.problem = nil, err
	}
}
