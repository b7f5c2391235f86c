package redfish

import (
	"maps"
	"net/http"
	"slices"
	"time"
)

// link returns a reference to a resource.
func link(path string) map[string]string { return map[string]string{"@odata.id": path} }

// resource returns a resource with the given properties and the properties that all resources have
// (DSP0266, section 9.5).
func resource(path, kind, id, name string, properties map[string]any) map[string]any {
	out := map[string]any{"@odata.id": path, "@odata.type": kind, "Id": id, "Name": name}
	maps.Copy(out, properties)
	return out
}

func members(paths []string) map[string]any {
	links := []map[string]string{}
	for _, p := range paths {
		links = append(links, link(p))
	}
	return map[string]any{"Members": links, "Members@odata.count": len(links)}
}

func (s *Server) root(*http.Request) (any, error) {
	return resource(rootPath+"/", "#ServiceRoot.v1_17_0.ServiceRoot", "RootService", "Root Service", map[string]any{
		"RedfishVersion": "1.20.0", "UUID": s.uuid, "Vendor": "Orlop OS", "Product": "vm",
		"Systems": link(rootPath + "/Systems"), "Managers": link(rootPath + "/Managers"),
		"SessionService": link(rootPath + "/SessionService"),
		"Links":          map[string]any{"Sessions": link(sessionsPath)},
	}), nil
}

func (s *Server) sessionService(*http.Request) (any, error) {
	return resource(rootPath+"/SessionService", "#SessionService.v1_1_9.SessionService", "SessionService", "Session Service", map[string]any{
		"ServiceEnabled": true, "SessionTimeout": int(sessionTTL.Seconds()), "Sessions": link(sessionsPath),
	}), nil
}

func (s *Server) listSessions(*http.Request) (any, error) {
	var paths []string
	for _, id := range s.sessions.ids(time.Now()) {
		paths = append(paths, sessionsPath+"/"+id)
	}
	return resource(sessionsPath, "#SessionCollection.SessionCollection", "Sessions", "Sessions", members(paths)), nil
}

// collection returns a method that returns a collection with a resource for each system.
func (s *Server) collection(kind, name string) method {
	return func(*http.Request) (any, error) {
		var paths []string
		for _, system := range s.systems() {
			paths = append(paths, rootPath+"/"+name+"/"+system.Name())
		}
		return resource(rootPath+"/"+name, "#"+kind+"Collection."+kind+"Collection", name, name, members(paths)), nil
	}
}

func powerState(s System) string {
	if s.Running() {
		return "On"
	}
	return "Off"
}

// health returns the Status of a system. Its Health is always OK, because the virtual hardware
// cannot fail.
func health(s System) map[string]string {
	if s.Running() {
		return map[string]string{"State": "Enabled", "Health": "OK"}
	}
	return map[string]string{"State": "Disabled", "Health": "OK"}
}

func getSystem(s System, _ *http.Request) (any, error) {
	h, path, manager := s.Hardware(), rootPath+"/Systems/"+s.Name(), rootPath+"/Managers/"+s.Name()
	properties := map[string]any{
		"SystemType": "Virtual", "Manufacturer": "QEMU", "SerialNumber": h.Serial, "UUID": h.UUID, "PowerState": powerState(s), "Status": health(s),
		"MemorySummary":    map[string]any{"TotalSystemMemoryGiB": float64(h.MemoryMiB) / 1024},
		"ProcessorSummary": map[string]any{"Count": 1, "CoreCount": h.CPUs, "LogicalProcessorCount": h.CPUs},
		"Boot":             boot(s),
		"Links":            map[string]any{"ManagedBy": []any{link(manager)}},
		"Actions": map[string]any{"#ComputerSystem.Reset": map[string]any{
			"target": path + "/Actions/ComputerSystem.Reset", "ResetType@Redfish.AllowableValues": resetTypes,
		}},
	}
	if h.Drive {
		properties["VirtualMedia"] = link(manager + "/VirtualMedia")
	}
	return resource(path, "#ComputerSystem.v1_22_0.ComputerSystem", s.Name(), s.Name(), properties), nil
}

// Values of BootSourceOverrideEnabled.
const (
	disabled   = "Disabled"
	once       = "Once"
	continuous = "Continuous"
)

func boot(s System) map[string]any {
	o := s.Override()
	enabled, target := disabled, None
	switch {
	case o.Enabled() && o.Once:
		enabled, target = once, o.Target
	case o.Enabled():
		enabled, target = continuous, o.Target
	}
	return map[string]any{
		"BootSourceOverrideEnabled": enabled, "BootSourceOverrideTarget": target, "BootSourceOverrideMode": "UEFI",
		"BootSourceOverrideTarget@Redfish.AllowableValues": slices.Concat([]Target{None}, s.Hardware().Targets),
	}
}

func getManager(s System, _ *http.Request) (any, error) {
	path := rootPath + "/Managers/" + s.Name()
	properties := map[string]any{
		"ManagerType": "BMC", "Status": map[string]string{"State": "Enabled", "Health": "OK"},
		"Links": map[string]any{"ManagerForServers": []any{link(rootPath + "/Systems/" + s.Name())}},
	}
	if s.Hardware().Drive {
		properties["VirtualMedia"] = link(path + "/VirtualMedia")
	}
	return resource(path, "#Manager.v1_19_0.Manager", s.Name(), "Manager of "+s.Name(), properties), nil
}

func listMedia(s System, _ *http.Request) (any, error) {
	path := rootPath + "/Managers/" + s.Name() + "/VirtualMedia"
	var paths []string
	if s.Hardware().Drive {
		paths = append(paths, path+"/Cd")
	}
	return resource(path, "#VirtualMediaCollection.VirtualMediaCollection", "VirtualMedia", "Virtual Media", members(paths)), nil
}

func getMedium(s System, _ *http.Request) (any, error) {
	if err := needDrive(s); err != nil {
		return nil, err
	}
	path := rootPath + "/Managers/" + s.Name() + "/VirtualMedia/Cd"
	properties := map[string]any{
		"MediaTypes": []string{"CD", "DVD"}, "Inserted": false, "Image": nil, "ConnectedVia": "NotConnected", "WriteProtected": true,
		"Actions": map[string]any{
			"#VirtualMedia.InsertMedia": map[string]any{"target": path + "/Actions/VirtualMedia.InsertMedia"},
			"#VirtualMedia.EjectMedia":  map[string]any{"target": path + "/Actions/VirtualMedia.EjectMedia"},
		},
	}
	if file := s.Medium(); file != "" {
		properties["Inserted"], properties["Image"], properties["ConnectedVia"] = true, uriOf(file), "URI"
	}
	return resource(path, "#VirtualMedia.v1_6_3.VirtualMedia", "Cd", "CD drive", properties), nil
}
