package redfish

import (
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
)

// The values of ResetType in Redfish.
const (
	resetOn       = "On"
	resetForceOff = "ForceOff"
	resetGraceful = "GracefulShutdown"
	resetRestart  = "ForceRestart"
)

var resetTypes = []string{resetOn, resetForceOff, resetGraceful, resetRestart}

// resetSystem operates the power switch. On and ForceOff succeed without an effect if the system
// has this state already. GracefulShutdown and ForceRestart fail if the system is off.
func resetSystem(s System, r *http.Request) (any, error) {
	var request struct{ ResetType string }
	if err := read(r, &request); err != nil {
		return nil, err
	}
	on := s.Running()
	switch request.ResetType {
	case resetOn:
		if on {
			return nil, nil
		}
		return nil, s.PowerOn(r.Context())
	case resetForceOff:
		s.PowerCut()
		return nil, nil
	case resetGraceful, resetRestart:
		if !on {
			return nil, fail(http.StatusConflict, "system %s: cannot do %s: it is off: use %s", s.Name(), request.ResetType, resetOn)
		}
		if request.ResetType == resetGraceful {
			return nil, s.PowerButton(r.Context())
		}
		return nil, s.Restart(r.Context())
	}
	return nil, fail(http.StatusBadRequest, "system %s: unknown ResetType %.40q: expected one of %s", s.Name(), request.ResetType, strings.Join(resetTypes, ", "))
}

// patchSystem sets the boot override and returns the system. A property that the request omits
// keeps its value.
func patchSystem(s System, r *http.Request) (any, error) {
	var request struct {
		Boot struct {
			BootSourceOverrideEnabled *string
			BootSourceOverrideTarget  *Target
			BootSourceOverrideMode    *string
		}
	}
	if err := read(r, &request); err != nil {
		return nil, err
	}
	b, next := request.Boot, s.Override()
	if b.BootSourceOverrideMode != nil && *b.BootSourceOverrideMode != "UEFI" {
		return nil, fail(http.StatusBadRequest, "system %s: BootSourceOverrideMode %.40q is impossible: the firmware has the mode UEFI only", s.Name(), *b.BootSourceOverrideMode)
	}
	if b.BootSourceOverrideTarget != nil {
		next.Target = *b.BootSourceOverrideTarget
		if targets := slices.Concat([]Target{None}, s.Hardware().Targets); !slices.Contains(targets, next.Target) {
			return nil, fail(http.StatusBadRequest, "system %s: BootSourceOverrideTarget %.40q is impossible: expected one of %v", s.Name(), next.Target, targets)
		}
	}
	if b.BootSourceOverrideEnabled != nil {
		switch *b.BootSourceOverrideEnabled {
		case disabled:
			next = Override{}
		case once:
			next.Once = true
		case continuous:
			next.Once = false
		default:
			return nil, fail(http.StatusBadRequest, "system %s: BootSourceOverrideEnabled %.40q: expected %s, %s or %s", s.Name(), *b.BootSourceOverrideEnabled, disabled, once, continuous)
		}
	}
	s.SetOverride(next)
	return getSystem(s, r)
}

// needDrive returns an error if the system has no CD drive.
func needDrive(s System) error {
	if !s.Hardware().Drive {
		return fail(http.StatusNotFound, "system %s: it has no CD drive: give it a disk on bus ide-cd", s.Name())
	}
	return nil
}

func uriOf(file string) string { return (&url.URL{Scheme: "file", Path: file}).String() }

func insertMedium(s System, r *http.Request) (any, error) {
	if err := needDrive(s); err != nil {
		return nil, err
	}
	var request struct {
		Image                    string
		Inserted, WriteProtected *bool
		MediaType                string
		TransferMethod           string
		TransferProtocolType     string
	}
	if err := read(r, &request); err != nil {
		return nil, err
	}
	if request.Inserted != nil && !*request.Inserted || request.WriteProtected != nil && !*request.WriteProtected {
		return nil, fail(http.StatusBadRequest, "system %s: cannot insert %.200q: a CD is inserted and cannot be written to: omit Inserted and WriteProtected", s.Name(), request.Image)
	}
	file, err := fileOf(request.Image)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(file); err != nil {
		return nil, fail(http.StatusBadRequest, "medium %s: cannot insert: %v", request.Image, err)
	} else if !info.Mode().IsRegular() {
		return nil, fail(http.StatusBadRequest, "medium %s: cannot insert: it is not a regular file", request.Image)
	}
	return nil, s.InsertMedium(r.Context(), file)
}

func ejectMedium(s System, r *http.Request) (any, error) {
	if err := needDrive(s); err != nil {
		return nil, err
	}
	if s.Medium() == "" {
		return nil, nil
	}
	return nil, s.EjectMedium(r.Context())
}
