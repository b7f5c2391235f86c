package scheduler

import (
	"fmt"

	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
)

// Profile is a profile of the scheduler with its plugins in their order. A weight of 0 is a plugin
// that does not score.
type Profile struct {
	Name    string
	Plugins []Plugin
}

// Plugin is a plugin of a profile.
type Plugin struct {
	Name   string
	Weight int32
}

// Plugins returns the profiles and the URLs of the extenders of a configuration file. The defaults
// depend on the feature gates of this process.
func Plugins(file string) (profiles []Profile, extenders []string, err error) {
	config, err := options.LoadConfigFromFile(klog.Background(), file)
	if err != nil {
		return nil, nil, fmt.Errorf("configuration of the scheduler: %w", err)
	}
	for _, p := range config.Profiles {
		profile := Profile{Name: p.SchedulerName}
		for _, plugin := range p.Plugins.MultiPoint.Enabled {
			profile.Plugins = append(profile.Plugins, Plugin{plugin.Name, plugin.Weight})
		}
		profiles = append(profiles, profile)
	}
	for _, e := range config.Extenders {
		extenders = append(extenders, e.URLPrefix)
	}
	return profiles, extenders, nil
}
