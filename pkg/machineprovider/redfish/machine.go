package redfish

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/stmcginnis/gofish"
	"github.com/stmcginnis/gofish/schemas"

	"github.com/orlop-os/orlop/pkg/machineprovider"
)

// operation is the state of a single operation on a machine.
type operation struct {
	*Machine
	what   string // name of the operation in errors, in the infinitive
	client *gofish.APIClient
	system *schemas.ComputerSystem
}

// do connects to the controller, reads the system and calls act. It returns each error as a
// machineprovider.Error. what names the operation.
func (m *Machine) do(ctx context.Context, what string, act func(*operation) error) error {
	ctx, cancel := context.WithTimeout(ctx, m.config.Timeout)
	defer cancel()
	o := &operation{Machine: m, what: what}
	defer m.transport.CloseIdleConnections()
	var err error
	o.client, err = gofish.ConnectContext(ctx, gofish.ClientConfig{Endpoint: m.config.Endpoint, Username: m.config.User, Password: m.config.Password,
		BasicAuth: true, HTTPClient: m.client(), NoModifyTransport: true, ReuseConnections: true})
	if err == nil {
		o.system, err = o.find()
	}
	if err == nil {
		err = act(o)
	}
	if err == nil {
		return nil
	}
	return o.explain(ctx, err)
}

// find returns the configured system of the controller. It fails with kind Invalid if the
// configuration does not select exactly one system.
func (o *operation) find() (*schemas.ComputerSystem, error) {
	// Service.Systems would read every system of the controller, and find needs only one.
	resp, err := o.client.Get("/redfish/v1/Systems")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var list schemas.Collection
	if err := decode(resp.Body, &list); err != nil {
		return nil, err
	}
	var found []string
	for _, link := range list.ItemLinks {
		if o.config.System == "" || path.Base(link) == o.config.System {
			found = append(found, link)
		}
	}
	if len(found) != 1 {
		return nil, o.fail(machineprovider.Invalid, fmt.Sprintf("the controller has %d systems, %d of them with the ID %q", len(list.ItemLinks), len(found), o.config.System),
			"name the ID of one of its systems: "+text(strings.Join(ids(list.ItemLinks), ", ")))
	}
	return schemas.GetObject[schemas.ComputerSystem](o.client, found[0])
}

func ids(links []string) []string {
	var all []string
	for _, link := range links {
		all = append(all, path.Base(link))
	}
	return all
}

// devices maps the targets of Redfish to devices.
var devices = []struct {
	target schemas.BootSource
	device machineprovider.Device
}{
	{schemas.HddBootSource, machineprovider.Disk},
	{schemas.CdBootSource, machineprovider.CD},
	{schemas.PxeBootSource, machineprovider.PXE},
	{schemas.UefiHTTPBootSource, machineprovider.HTTP},
}

// Describe returns the present state of the machine.
func (m *Machine) Describe(ctx context.Context) (machineprovider.Description, error) {
	var d machineprovider.Description
	err := m.do(ctx, "read its state", func(o *operation) error {
		d = describe(o.system)
		drive, err := o.drive()
		if err != nil || drive == nil {
			return err
		}
		d.Drive = true
		if inserted(drive) {
			d.Medium = text(drive.Image)
		}
		return nil
	})
	if err != nil {
		return machineprovider.Description{}, err
	}
	return d, nil
}

// ReadPower returns the state of the machine without its CD drive. The requests for the CD drive
// can take long, and can need rights that a user for the power does not have.
func (m *Machine) ReadPower(ctx context.Context) (machineprovider.Description, error) {
	var d machineprovider.Description
	err := m.do(ctx, "read its power", func(o *operation) error {
		d = describe(o.system)
		return nil
	})
	return d, err
}

// describe returns the description of a system, without its CD drive.
func describe(s *schemas.ComputerSystem) machineprovider.Description {
	d := machineprovider.Description{
		Serial: text(s.SerialNumber), UUID: strings.ToLower(text(s.UUID)), Manufacturer: text(s.Manufacturer), Model: text(s.Model), Power: power(s.PowerState),
	}
	if size := s.MemorySummary.TotalSystemMemoryGiB; size != nil && *size > 0 && *size < 1<<30 {
		d.MemoryMiB = int64(*size * 1024)
	}
	for _, count := range []*uint{s.ProcessorSummary.LogicalProcessorCount, s.ProcessorSummary.CoreCount, s.ProcessorSummary.Count} {
		if count != nil && *count > 0 && *count < 1<<20 {
			d.CPUs = int(*count)
			break
		}
	}
	for _, known := range devices {
		if slices.Contains(s.Boot.AllowableBootSourceOverrideTargetValues, known.target) {
			d.BootDevices = append(d.BootDevices, known.device)
		}
		if enabled := s.Boot.BootSourceOverrideEnabled; s.Boot.BootSourceOverrideTarget == known.target && enabled != "" && enabled != schemas.DisabledBootSourceOverrideEnabled {
			d.Boot = machineprovider.Boot{Device: known.device, Once: enabled == schemas.OnceBootSourceOverrideEnabled, URL: text(s.Boot.HTTPBootURI)}
		}
	}
	return d
}

func power(s schemas.PowerState) machineprovider.State {
	switch s {
	case schemas.OnPowerState:
		return machineprovider.StateOn
	case schemas.OffPowerState:
		return machineprovider.StateOff
	case schemas.PoweringOnPowerState, schemas.PoweringOffPowerState:
		return machineprovider.StateChanging
	}
	return machineprovider.StateUnknown
}

// SetPower operates the power switch.
func (m *Machine) SetPower(ctx context.Context, p machineprovider.Power) error {
	operations := map[machineprovider.Power]struct {
		what  string
		reset schemas.ResetType
		done  machineprovider.State // state of a machine on which the operation has no effect
	}{
		machineprovider.On:       {"switch on", schemas.OnResetType, machineprovider.StateOn},
		machineprovider.Off:      {"switch off", schemas.ForceOffResetType, machineprovider.StateOff},
		machineprovider.Shutdown: {"request a shutdown", schemas.GracefulShutdownResetType, machineprovider.StateOff},
		machineprovider.Restart:  {"restart", schemas.ForceRestartResetType, ""},
	}
	do, found := operations[p]
	if !found {
		o := operation{Machine: m, what: "operate the power switch"}
		return o.fail(machineprovider.Invalid, fmt.Sprintf("there is no operation %q", p), "use on, off, shutdown or restart")
	}
	return m.do(ctx, do.what, func(o *operation) error {
		state := power(o.system.PowerState)
		switch {
		case state == do.done:
			return nil
		case p == machineprovider.Restart && state == machineprovider.StateOff:
			return o.fail(machineprovider.Conflict, "it is off", "switch it on instead")
		}
		supported, err := o.system.GetSupportedResetTypes()
		if err != nil {
			return err
		}
		if len(supported) > 0 && !slices.Contains(supported, do.reset) {
			return o.fail(machineprovider.Unsupported, fmt.Sprintf("the controller has no reset type %s", do.reset), fmt.Sprintf("use one of its types: %s", text(fmt.Sprint(supported))))
		}
		_, err = o.system.Reset(do.reset)
		return err
	})
}

// SetBoot selects the device of the next boots.
func (m *Machine) SetBoot(ctx context.Context, b machineprovider.Boot) error {
	what := "boot from " + string(b.Device)
	if b.Device == "" {
		what = "boot in the order of the firmware"
	}
	return m.do(ctx, what, func(o *operation) error {
		request := &schemas.Boot{BootSourceOverrideEnabled: schemas.DisabledBootSourceOverrideEnabled, BootSourceOverrideTarget: schemas.NoneBootSource}
		if b.Device != "" {
			if err := o.checkBoot(b); err != nil {
				return err
			}
			request.BootSourceOverrideEnabled = schemas.ContinuousBootSourceOverrideEnabled
			if b.Once {
				request.BootSourceOverrideEnabled = schemas.OnceBootSourceOverrideEnabled
			}
			if o.system.Boot.BootSourceOverrideMode == schemas.LegacyBootSourceOverrideMode {
				request.BootSourceOverrideMode = schemas.UEFIBootSourceOverrideMode
			}
			request.HTTPBootURI = b.URL
		}
		for _, known := range devices {
			if known.device == b.Device {
				request.BootSourceOverrideTarget = known.target
			}
		}
		return o.system.SetBoot(request)
	})
}

// checkBoot returns an error if the controller cannot boot from the device, or if the URL does not
// belong to the device HTTP.
func (o *operation) checkBoot(b machineprovider.Boot) error {
	if has := describe(o.system).BootDevices; !slices.Contains(has, b.Device) {
		return o.fail(machineprovider.Unsupported, fmt.Sprintf("the controller offers no such device, only %v", has), "use one of these devices, or select it in the setup of the firmware")
	}
	if b.URL != "" && b.Device != machineprovider.HTTP {
		return o.fail(machineprovider.Invalid, "a URL belongs to the device "+string(machineprovider.HTTP)+" alone", "remove the URL")
	}
	return nil
}

// InsertMedium replaces the medium in the CD drive; "" ejects the medium.
func (m *Machine) InsertMedium(ctx context.Context, url string) error {
	what := "insert a medium"
	if url == "" {
		what = "eject the medium"
	}
	return m.do(ctx, what, func(o *operation) error {
		drive, err := o.drive()
		if err != nil {
			return err
		}
		if drive == nil {
			return o.fail(machineprovider.Unsupported, "its controller has no virtual CD drive", "boot from the network instead")
		}
		if url != "" && inserted(drive) && drive.Image == url {
			return nil
		}
		// Many controllers insert a medium only into an empty drive.
		if inserted(drive) {
			if _, err := drive.EjectMedia(); err != nil {
				return err
			}
		}
		if url == "" {
			return nil
		}
		_, err = drive.InsertMedia(&schemas.VirtualMediaInsertMediaParameters{Image: url})
		return err
	})
}

func inserted(drive *schemas.VirtualMedia) bool {
	return drive.Inserted != nil && *drive.Inserted || drive.Inserted == nil && drive.Image != ""
}

// drive returns the virtual CD drive, or nil if there is none. The drive belongs to the system.
// Before version 1.13 of the schema of ComputerSystem, it belongs to a manager of the system.
func (o *operation) drive() (*schemas.VirtualMedia, error) {
	media, err := o.system.VirtualMedia()
	if err != nil {
		return nil, err
	}
	if len(media) == 0 {
		managers, err := o.system.ManagedBy()
		if err != nil {
			return nil, err
		}
		for _, manager := range managers {
			more, err := manager.VirtualMedia()
			if err != nil {
				return nil, err
			}
			media = append(media, more...)
		}
	}
	for _, drive := range media {
		if slices.Contains(drive.MediaTypes, schemas.CDVirtualMediaType) || slices.Contains(drive.MediaTypes, schemas.DVDVirtualMediaType) {
			return drive, nil
		}
	}
	return nil, nil
}
