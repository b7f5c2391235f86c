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

// maxProblem is the largest length of the problem of a key exchange, in bytes. The problem quotes
// the certificate of the other host, which can be an attacker and send a certificate of any size.
const maxProblem = 500

// errWrongTime is the error for an authenticated time outside the validity of the server's
// certificate. While the clock is unknown, the key exchange accepts a certificate that expired
// after the floor. With errWrongTime, the owner of such a certificate cannot set the clock to a
// time after its expiry.
var errWrongTime = errors.New("its certificate is not valid at the time that it reports")

// queryNTS queries a server for the time. It performs a key exchange first if the association has
// no keys. It returns only authenticated answers.
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

// keyServer returns the name that the certificate of a configured server must have, and the
// server's address for key exchanges, with the port.
func keyServer(server string) (name, address string) {
	if host, _, err := net.SplitHostPort(server); err == nil {
		return host, server
	}
	return server, net.JoinHostPort(server, strconv.Itoa(nts.Port))
}

// clockView returns the machine's knowledge of the time, for the check of a certificate.
func (d run) clockView() pki.ClockView {
	return pki.ClockView{Now: d.Clock.Now(), Floor: d.Floor.Now(time.Now()), Unknown: d.known.last.IsZero()}
}
