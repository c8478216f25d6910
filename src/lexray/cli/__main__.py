from lexray.cli import main

main()
