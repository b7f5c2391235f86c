package machinetest

import (
	"context"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/diskkey"
)

// recoveryKey opens STATE and DATA. binding is the digest of the secret of the former STATE.
const (
	recoveryKey = "abcd-efgh-ijkl-mnop-qrst-uvwx-yz23-4567-abcd-efgh-ijkl-mnop-qrst"
	binding     = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8"
)

// GetRecovery implements api.MachineServer. STATE and DATA are locked if the configuration requests
// encryption. The path of DATA has control characters.
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
	state, err := diskkey.EncryptRecovery(diskkey.RecoveryContent{Label: "STATE", UUID: sent, Key: recoveryKey}, recipients)
	if err != nil {
		return nil, err
	}
	data, err := diskkey.EncryptRecovery(diskkey.RecoveryContent{Label: "DATA", UUID: id, Key: recoveryKey, Binding: binding}, recipients)
	return &api.GetRecoveryResponse{Volumes: []*api.LockedVolume{
		{Label: "STATE", Device: "/dev/vda4", Uuid: id.String(), Recipients: state.Recipients, RecoveryKey: state.Ciphertext},
		{Label: "DATA", Device: "/dev/vda5\x1b[2J", Uuid: id.String(), Recipients: data.Recipients, RecoveryKey: data.Ciphertext},
	}}, err
}

// Recover implements api.MachineServer. The present STATE is another one on a machine with the name
// "erased".
func (s *machineService) Recover(_ context.Context, r *api.RecoverRequest) (*api.RecoverResponse, error) {
	if len(r.Keys) == 0 {
		return nil, status.Error(codes.FailedPrecondition, "encryption: no partition is locked; nothing was changed")
	}
	for i, want := range []*api.RecoveryKey{{Label: "STATE", Key: recoveryKey}, {Label: "DATA", Key: recoveryKey, Binding: binding}} {
		if i >= len(r.Keys) || !proto.Equal(r.Keys[i], want) {
			return nil, status.Error(codes.FailedPrecondition, "encryption: a recovery key is missing or wrong; nothing was changed")
		}
	}
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if s.f.configs.present.Machine.Metadata.Name == "erased" && !r.NewState {
		return nil, status.Error(codes.FailedPrecondition, "encryption: "+diskkey.ErrOtherState.Error()+"; nothing was changed")
	}
	return &api.RecoverResponse{}, nil
}
