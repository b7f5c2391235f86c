package redfish

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/stmcginnis/gofish/schemas"

	"github.com/orlop-os/orlop/pkg/machineprovider"
	"github.com/orlop-os/orlop/pkg/sanitize"
)

// text makes a text of a controller safe for logs and terminals, and limits its length.
func text(s string) string { return sanitize.ASCII(s, maxText) }

func decode(body io.Reader, into any) error {
	if err := json.NewDecoder(body).Decode(into); err != nil {
		return fmt.Errorf("cannot read the answer: %w", err)
	}
	return nil
}

func (o *operation) fail(kind machineprovider.Kind, reason, remedy string) error {
	return &machineprovider.Error{Kind: kind, Machine: o.config.Name, Operation: o.what, Reason: reason, Remedy: remedy}
}

// explain returns err as a machineprovider.Error with kind, reason and remedy. It does not change a
// machineprovider.Error. A CollectionError has an error per member, but does not unwrap these
// errors, so explain joins them.
func (o *operation) explain(ctx context.Context, err error) error {
	var done *machineprovider.Error
	if errors.As(err, &done) {
		return done
	}
	var collection *schemas.CollectionError
	if errors.As(err, &collection) {
		for _, cause := range collection.Failures {
			err = errors.Join(err, cause)
		}
	}
	out := &machineprovider.Error{Machine: o.config.Name, Operation: o.what, Err: err}
	var answered *schemas.Error
	var certificate *tls.CertificateVerificationError
	var large *http.MaxBytesError
	switch {
	case errors.Is(err, errUntrusted) || errors.As(err, &certificate):
		out.Kind, out.Reason = machineprovider.Untrusted, text(err.Error())
		out.Remedy = "compare the key with that of the controller, on its own page or console; another key can be an attacker's"
	case errors.Is(err, errOtherHost):
		out.Kind, out.Reason, out.Remedy = machineprovider.Untrusted, errOtherHost.Error(), "update the firmware of the controller, or use the address to which it refers"
	case errors.As(err, &large):
		out.Kind, out.Reason, out.Remedy = machineprovider.Rejected, fmt.Sprintf("the answer is larger than %d bytes", large.Limit), "update the firmware of the controller"
	case errors.Is(err, errTooMany):
		out.Kind, out.Reason, out.Remedy = machineprovider.Rejected, text(err.Error()), "update the firmware of the controller"
	case errors.As(err, &answered) && answered.HTTPReturnedStatusCode > 0:
		o.explainAnswer(out, answered)
	case ctx.Err() != nil:
		out.Err = errors.Join(ctx.Err(), err)
		out.Kind, out.Reason, out.Remedy = machineprovider.Unreachable, fmt.Sprintf("no answer in time (%v)", ctx.Err()), "try again; if it fails again, restart the controller"
	case isTransport(err):
		out.Kind, out.Reason, out.Remedy = machineprovider.Unreachable, text(err.Error()), "check the address "+o.config.Endpoint+" and the network of the controllers"
	default:
		out.Kind, out.Reason, out.Remedy = machineprovider.Rejected, text(err.Error()), "update the firmware of the controller, and check that the address is that of a Redfish service"
	}
	return out
}

// explainAnswer fills in the kind, the reason and the remedy for an answer with an error status.
func (o *operation) explainAnswer(out *machineprovider.Error, answered *schemas.Error) {
	message := answered.Message
	for _, more := range answered.ExtendedInfos {
		message = cmp.Or(more.Message, message)
	}
	status := answered.HTTPReturnedStatusCode
	out.Reason = fmt.Sprintf("the controller answered %d %s: %s", status, http.StatusText(status), text(message))
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		out.Kind, out.Remedy = machineprovider.Unauthorized, fmt.Sprintf("check the password of user %s, and its right to operate the power", text(o.config.User))
	case http.StatusConflict:
		out.Kind, out.Remedy = machineprovider.Conflict, "wait until the machine has ended its present operation, and try again"
	default:
		out.Kind, out.Remedy = machineprovider.Rejected, "see the log of the controller"
	}
}

// isTransport reports whether the request failed without an answer.
func isTransport(err error) bool {
	var failed *url.Error
	return errors.As(err, &failed)
}
