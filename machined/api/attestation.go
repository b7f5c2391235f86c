package api

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/attest"
)

// TPM is the machine's TPM: it returns its keys and signs its PCRs.
type TPM interface {
	Keys(ctx context.Context) (attest.Keys, error)
	Attest(ctx context.Context, nonce []byte, c attest.Challenge, claims attest.Claims) (attest.Evidence, error)
}

// AttestationDeps are the dependencies of service Attestation.
type AttestationDeps struct {
	TPM TPM
	// Claims returns the claims of the machine for a quote.
	Claims func() (attest.Claims, error)
}

type attestationService struct {
	api.UnimplementedAttestationServer
	deps AttestationDeps
}

// maxChallenge is the maximum size of each part of a challenge, in bytes. The two parts of real
// challenges have 68 and 68 bytes for an elliptic curve, 68 and 256 bytes for RSA.
const maxChallenge = 1 << 10

func (s attestationService) GetKeys(ctx context.Context, _ *api.GetAttestationKeysRequest) (*api.GetAttestationKeysResponse, error) {
	k, err := s.deps.TPM.Keys(ctx)
	if err != nil {
		return nil, tpmStatus(err)
	}
	return &api.GetAttestationKeysResponse{EndorsementKey: k.Endorsement, EndorsementCertificate: k.Certificate, AttestationKey: k.Attestation}, nil
}

func (s attestationService) Attest(ctx context.Context, r *api.AttestRequest) (*api.AttestResponse, error) {
	if len(r.Nonce) != attest.NonceSize {
		return nil, status.Errorf(codes.InvalidArgument, "nonce: has %d bytes: %d expected", len(r.Nonce), attest.NonceSize)
	}
	if len(r.Credential) > maxChallenge || len(r.Secret) > maxChallenge {
		return nil, status.Errorf(codes.InvalidArgument, "challenge: has %d and %d bytes: at most %d expected", len(r.Credential), len(r.Secret), maxChallenge)
	}
	claims, err := s.deps.Claims()
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	e, err := s.deps.TPM.Attest(ctx, r.Nonce, attest.Challenge{Credential: r.Credential, Secret: r.Secret}, claims)
	if err != nil {
		return nil, tpmStatus(err)
	}
	return &api.AttestResponse{
		Quote: e.Quote, Signature: e.Signature, Pcrs: e.PCRs, EventLog: e.Log, Answer: e.Answer,
		Version: claims.Version, Root: claims.Root, Configuration: claims.Configuration, MachineKey: claims.MachineKey,
	}, nil
}

// tpmStatus returns the gRPC status of an error of the TPM.
func tpmStatus(err error) error {
	code := codes.FailedPrecondition
	switch {
	case errors.Is(err, attest.ErrBusy):
		code = codes.ResourceExhausted
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	}
	return status.Error(code, err.Error())
}
