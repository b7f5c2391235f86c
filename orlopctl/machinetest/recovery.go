package machinetest

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/diskkey"
)

// recoveryKey opens STATE.
const recoveryKey = "abcd-efgh-ijkl-mnop-qrst-uvwx-yz23-4567-abcd-efgh-ijkl-mnop-qrst"

// GetRecovery implements api.MachineServer. STATE is locked if the configuration requests
// encryption.
func (s *machineService) GetRecovery(context.Context, *api.GetRecoveryRequest) (*api.GetRecoveryResponse, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if !s.f.configs.present.EncryptsDisk() {
		return &api.GetRecoveryResponse{}, nil
	}
	var recipients []string
	for _, r := range s.f.configs.present.Machine.Spec.Disk.Encryption.Recovery.Recipients {
		recipients = append(recipients, string(r))
	}
	r, err := diskkey.EncryptRecovery(recoveryKey, recipients)
	return &api.GetRecoveryResponse{Volumes: []*api.LockedVolume{{Label: "STATE", Device: "/dev/vda4", Recipients: r.Recipients, RecoveryKey: r.Ciphertext}}}, err
}

// Recover implements api.MachineServer.
func (s *machineService) Recover(_ context.Context, r *api.RecoverRequest) (*api.RecoverResponse, error) {
	if len(r.Keys) != 1 || r.Keys[0].Label != "STATE" || r.Keys[0].Key != recoveryKey {
		return nil, status.Error(codes.FailedPrecondition, "encryption: no partition is locked; nothing was changed")
	}
	return &api.RecoverResponse{}, nil
}
