package timesync

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/orlop-os/orlop/machined/timesync/nts"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/sanitize"
)

// maxProblem bounds the problem of a key exchange, in bytes: it quotes the certificate of a host,
// which can be a forger.
const maxProblem = 500

// errWrongTime is an authenticated time at which the certificate of the server is not valid. While
// the clock is unknown, the key exchange accepts a certificate that has expired since the floor.
// The owner of this certificate cannot set the clock to a time after its end.
var errWrongTime = errors.New("its certificate is not valid at the time that it reports")

// queryNTS queries a server, after a key exchange if the association has no keys. It uses no answer
// without authentication.
func (d run) queryNTS(ctx context.Context, server string, dial dialer) (Sample, error) {
	a := d.associations[server]
	name, address := keyServer(server)
	roots := d.sources.CAs.Roots()
	if a.session == nil {
		if err := a.wait(time.Now()); err != nil {
			return Sample{}, err
		}
		s, err := nts.Exchange(ctx, address, pki.ClientConfig(name, roots, d.clockView))
		if err != nil {
			err = errors.New("key exchange (NTS): " + sanitize.ASCII(err.Error(), maxProblem))
		}
		if a.exchanged(s, err, time.Now()); err != nil {
			return Sample{}, err
		}
	}
	session := a.session
	s, err := query(session.Address(), dial, session)
	if err == nil {
		says := d.Clock.Now().Add(s.Offset)
		if invalid := pki.VerifyServer(session.Certificates(), roots, name, says); invalid != nil {
			err = fmt.Errorf("%w (%s): %s", errWrongTime, says.UTC().Format(time.RFC3339), sanitize.ASCII(invalid.Error(), maxProblem))
		}
	}
	a.answered(session.Answered(), session.Cookies(), err)
	s.Authenticated = err == nil
	return s, err
}

// keyServer returns the name in the certificate of a configured server, and the address for key
// exchanges.
func keyServer(server string) (name, address string) {
	if host, _, err := net.SplitHostPort(server); err == nil {
		return host, server
	}
	return server, net.JoinHostPort(server, strconv.Itoa(nts.Port))
}

// clockView returns the knowledge of the time for the check of a certificate.
func (d run) clockView() pki.ClockView {
	return pki.ClockView{Now: d.Clock.Now(), Floor: d.Floor.Now(time.Now()), Unknown: d.known.last.IsZero()}
}
