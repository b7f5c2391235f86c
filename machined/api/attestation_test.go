package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/attest"
)

// fakeTPM returns evidence that repeats the request, or an error.
type fakeTPM struct{ err error }

func (f fakeTPM) Keys(context.Context) (attest.Keys, error) {
	return attest.Keys{Endorsement: []byte("ek"), Certificate: []byte("certificate"), Attestation: []byte("ak")}, f.err
}

func (f fakeTPM) Attest(_ context.Context, nonce []byte, c attest.Challenge, claims attest.Claims) (attest.Evidence, error) {
	return attest.Evidence{Claims: claims, Quote: attest.Binding(nonce, claims), Signature: c.Secret, PCRs: []byte("pcrs"), Log: []byte("log"), Answer: c.Credential}, f.err
}

func TestAttestation(t *testing.T) {
	claims := attest.Claims{Version: "1.2.3", Root: "root", Configuration: []byte{1}, MachineKey: "sha256:aa"}
	nonce := bytes.Repeat([]byte{1}, attest.NonceSize)
	good := &api.AttestRequest{Nonce: nonce, Credential: []byte("credential"), Secret: []byte("secret")}
	service := func(tpm, claimed error) attestationService {
		return attestationService{deps: AttestationDeps{TPM: fakeTPM{tpm}, Claims: func() (attest.Claims, error) { return claims, claimed }}}
	}
	ctx := t.Context()
	k, err := service(nil, nil).GetKeys(ctx, nil)
	if err != nil || string(k.EndorsementKey)+string(k.EndorsementCertificate)+string(k.AttestationKey) != "ekcertificateak" {
		t.Errorf("GetKeys returns %v, %v", k, err)
	}
	a, err := service(nil, nil).Attest(ctx, good)
	if err != nil || !bytes.Equal(a.Quote, attest.Binding(nonce, attest.Claims{Version: a.Version, Root: a.Root, Configuration: a.Configuration, MachineKey: a.MachineKey})) ||
		string(a.Signature)+string(a.Answer)+string(a.Pcrs)+string(a.EventLog) != "secretcredentialpcrslog" {
		t.Errorf("Attest returns %v, %v", a, err)
	}
	for _, c := range []struct {
		name         string
		tpm, claimed error
		request      *api.AttestRequest
		code         codes.Code
		want         string
	}{
		{"short nonce", nil, nil, &api.AttestRequest{Nonce: nonce[1:]}, codes.InvalidArgument, "nonce: has 31 bytes: 32 expected"},
		{"long challenge", nil, nil, &api.AttestRequest{Nonce: nonce, Secret: make([]byte, maxChallenge+1)}, codes.InvalidArgument, "challenge: has 0 and 1025 bytes: at most 1024 expected"},
		{"no claims", nil, errors.New("no key yet"), good, codes.FailedPrecondition, "no key yet"},
		{"no TPM", attest.ErrNone, nil, good, codes.FailedPrecondition, "TPM: the machine has no TPM 2.0"},
		{"busy", attest.ErrBusy, nil, good, codes.ResourceExhausted, "TPM: it works on another call; try again in some seconds"},
		{"no answer", fmt.Errorf("TPM: it gives no answer: %w", context.DeadlineExceeded), nil, good, codes.DeadlineExceeded, "TPM: it gives no answer"},
	} {
		_, err := service(c.tpm, c.claimed).Attest(ctx, c.request)
		if status.Code(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %v: %s", c.name, err, c.code, c.want)
		}
	}
}
