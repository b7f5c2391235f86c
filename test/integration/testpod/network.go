package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// This file is a third-party pod network that is installed in the usual way. A pod writes a CNI
// plugin and a configuration to the machine. The container runtime then uses the plugin to connect
// pods.

// pluginName is the file name of the plugin on the machine.
const pluginName = "testnet"

// bring writes the plugin and its configuration to the two directories of the machine, and then
// serves until it is ended. The plugin is a copy of this program. Pods get addresses from the
// range.
func bring(addresses, plugins, configurations string) error {
	own, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer own.Close()
	plugin := filepath.Join(plugins, pluginName)
	if err := os.Remove(plugin); err != nil && !os.IsNotExist(err) {
		return err
	}
	file, err := os.OpenFile(plugin, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(file, own); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	text, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": pluginName, "plugins": []any{map[string]any{
			"type": pluginName, "bridge": "other0", "isGateway": true, "hairpinMode": true,
			"ipam": map[string]any{
				"type": "host-local", "dataDir": "/run/" + pluginName, "ranges": [][]map[string]string{{{"subnet": addresses}}}, "routes": []map[string]string{{"dst": "0.0.0.0/0"}},
			},
		}},
	})
	if err != nil {
		return err
	}
	if err := write(filepath.Join(configurations, "05-"+pluginName+".conflist"), text); err != nil {
		return err
	}
	fmt.Println("pods get addresses from", addresses)
	return serve("127.0.0.1:8086")
}

// connect is the CNI plugin. It executes the bridge plugin of upstream from the first directory of
// CNI_PATH that has it.
func connect() error {
	for _, dir := range filepath.SplitList(os.Getenv("CNI_PATH")) {
		bridge := filepath.Join(dir, "bridge")
		if _, err := os.Stat(bridge); err == nil {
			return syscall.Exec(bridge, []string{bridge}, os.Environ())
		}
	}
	return fmt.Errorf("no plugin bridge in CNI_PATH %q", os.Getenv("CNI_PATH"))
}
