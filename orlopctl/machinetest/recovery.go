package machinetest

import (
	"context"

	"github.com/google/uuid"
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
	// A machine without wipeForeign sends the recovery key of another machine.
	id, sent := uuid.MustParse("7a1f2c8e-5a61-4c5b-9a6d-0c1d2e3f4a5b"), uuid.UUID{1}
	if s.f.configs.present.Machine.Spec.Disk.WipeForeign {
		sent = id
	}
	r, err := diskkey.EncryptRecovery(diskkey.RecoveryContent{Label: "STATE", UUID: sent, Key: recoveryKey}, recipients)
	return &api.GetRecoveryResponse{Volumes: []*api.LockedVolume{{Label: "STATE", Device: "/dev/vda4", Uuid: id.String(), Recipients: r.Recipients, RecoveryKey: r.Ciphertext}}}, err
}

// Recover implements api.MachineServer.
func (s *machineService) Recover(_ context.Context, r *api.RecoverRequest) (*api.RecoverResponse, error) {
	if len(r.Keys) != 1 || r.Keys[0].Label != "STATE" || r.Keys[0].Key != recoveryKey {
		return nil, status.Error(codes.FailedPrecondition, "encryption: no partition is locked; nothing was changed")
	}
	return &api.RecoverResponse{}, nil
}
