package timesync

import (
	"errors"
	"time"

	"github.com/orlop-os/orlop/machined/timesync/nts"
	"github.com/orlop-os/orlop/pkg/backoff"
)

// maxLost is the number of requests without an authenticated answer after which the keys are
// replaced. The server can have a new address, or drop requests with old cookies.
const maxLost = 3

// exchanges is the time between key exchanges while no answer is authenticated. A key exchange
// costs a server more than a request.
var exchanges = backoff.Backoff{Min: 4 * time.Second, Max: 1024 * time.Second}

// association is the client's state for a server with NTS. It is pure.
type association struct {
	session *nts.Session // nil: a key exchange comes before the next request
	lost    int          // requests without an authenticated answer, in a row
	tries   int          // key exchanges since the last authenticated answer
	next    time.Time    // no key exchange before
	problem error        // why there is no session
}

// wait returns why a key exchange must wait at now, or nil: the last problem, in the same words.
func (a *association) wait(now time.Time) error {
	if now.Before(a.next) {
		return a.problem
	}
	return nil
}

// exchanged records a key exchange that ended at now.
func (a *association) exchanged(s *nts.Session, err error, now time.Time) {
	a.tries++
	a.session, a.problem, a.lost = s, err, 0
	a.next = now.Add(exchanges.Delay(a.tries))
}

// answered records the result of a request. authenticated reports that the answer had the key of
// the server; cookies are left.
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
